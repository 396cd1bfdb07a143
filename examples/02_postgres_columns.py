"""
Several columns from PostgreSQL: one call looks up many keys, and the types come from the table.

    root
     |-- item: string (nullable = true)
     |-- shop: string (nullable = true)
     |-- user_id: long (nullable = true)
     |-- user: struct (nullable = true)
     |    |-- name: string (nullable = true)
     |    |-- tier: integer (nullable = true)
     |    |-- since: date (nullable = true)

    +----+----+----+----------+-----+
    |item|name|tier|     since|price|
    +----+----+----+----------+-----+
    | tea| Ann|   3|2021-05-01| 4.50|
    | tea| Bob|NULL|2024-02-29| 4.75|
    | jam| Ann|   3|2021-05-01| 3.20|
    | jam|NULL|NULL|      NULL| NULL|
    | tea|NULL|NULL|      NULL| 4.75|
    +----+----+----+----------+-----+
"""

from enrichkit_postgres import PostgresConfig

from enrichkit import enrich, local

TABLES = """
    CREATE TABLE users (id bigint PRIMARY KEY, name text, tier int, since date);
    INSERT INTO users VALUES (1, 'Ann', 3, '2021-05-01'), (2, 'Bob', NULL, '2024-02-29');
    CREATE TABLE prices (shop text, item text, price numeric(10, 2), PRIMARY KEY (shop, item));
    INSERT INTO prices VALUES ('Oslo', 'tea', 4.50), ('Bonn', 'tea', 4.75), ('Oslo', 'jam', 3.20);
"""

with local.postgres() as server, local.spark() as spark:
    server.execute(TABLES)
    orders = spark.createDataFrame(
        [("tea", "Oslo", 1), ("tea", "Bonn", 2), ("jam", "Oslo", 1), ("jam", "Bonn", 7), ("tea", "Bonn", None)],
        "item string, shop string, user_id bigint",
    )

    # Several value columns make a struct. Its type need not be declared: this line asks PostgreSQL for the types.
    users = PostgresConfig(dsn=server.dsn, table="users", columns=("name", "tier", "since"))
    enriched = orders.withColumn("user", enrich(users, "user_id"))
    enriched.printSchema()

    # Two key columns form one key. A single value column makes a column of its own type, here decimal(10,2).
    prices = PostgresConfig(dsn=server.dsn, table="prices", key=("shop", "item"), columns=("price",))
    enriched.withColumn("price", enrich(prices, "shop", "item")).select("item", "user.*", "price").show()
