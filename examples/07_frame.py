"""
A whole DataFrame: a join with a source, with several matches per key.

    a row for each order:
    +-------+----+----+-----+
    |user_id|name|item|price|
    +-------+----+----+-----+
    |      1| Ann| jam| 3.20|
    |      1| Ann| tea| 4.50|
    |      2| Bob| tea| 4.75|
    +-------+----+----+-----+

    a row for each user:
    +-------+----+--------------------------+
    |user_id|name|orders                    |
    +-------+----+--------------------------+
    |1      |Ann |[{tea, 4.50}, {jam, 3.20}]|
    |2      |Bob |[{tea, 4.75}]             |
    |3      |Eve |NULL                      |
    +-------+----+--------------------------+
"""

from enrichkit_postgres import PostgresConfig

from enrichkit import enrich_frame, enriched, local

TABLES = """
    CREATE TABLE orders (id serial PRIMARY KEY, user_id bigint, item text, price numeric(10, 2));
    INSERT INTO orders (user_id, item, price) VALUES (1, 'tea', 4.50), (1, 'jam', 3.20), (2, 'tea', 4.75);
"""

with local.postgres() as server, local.spark() as spark:
    server.execute(TABLES)
    users = spark.createDataFrame([(1, "Ann"), (2, "Bob"), (3, "Eve")], "user_id bigint, name string")
    orders = PostgresConfig(
        dsn=server.dsn,
        query="SELECT user_id, item, price FROM orders WHERE user_id = ANY($1) ORDER BY id",
        key="user_id",
        returns="item string, price decimal(10,2)",  # the type of one match
    )

    # An inner join drops users without an order. With ordered=False, a row leaves when its lookup is done.
    print("a row for each order:")
    enrich_frame(users, orders, on="user_id", how="inner", many=True, ordered=False).orderBy("user_id", "item").show()

    # With many="array" every user stays one row. `enriched` is `enrich_frame` as a function for DataFrame.transform.
    print("a row for each user:")
    users.transform(enriched(orders, on="user_id", into="orders", many="array")).show(truncate=False)
