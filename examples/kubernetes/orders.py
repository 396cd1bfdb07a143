"""A job of a cluster: orders with the names of their users, whose password only the executors know."""

from enrichkit_redis import RedisConfig
from pyspark.sql import SparkSession

from enrichkit import Secret, enrich

users = RedisConfig(url="redis://users.shop:6379/0", key="user:{}", password=Secret.env("SHOP_PASSWORD"))
spark = SparkSession.builder.getOrCreate()
orders = spark.read.parquet("s3a://shop/orders")
orders.withColumn("name", enrich(users, "user_id", returns="string")).write.parquet("s3a://shop/named")
