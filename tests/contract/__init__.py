"""A connector for the tests of the contract kit, its server, and the bugs that are planted in it."""
