"""What the author of a connector tests with: fixtures on real servers (`enrichkit.testing.fixtures`)."""
