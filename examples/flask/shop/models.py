from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import CheckConstraint, ForeignKey
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class Base(DeclarativeBase):
    pass


db = SQLAlchemy(model_class=Base)


class Customer(db.Model):
    __tablename__ = "customers"
    id: Mapped[int] = mapped_column(primary_key=True)
    points: Mapped[int] = mapped_column(default=0)


class Product(db.Model):
    __tablename__ = "products"
    __table_args__ = (CheckConstraint("stock >= 0"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    stock: Mapped[int]


class Order(db.Model):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    customer_id: Mapped[int] = mapped_column(ForeignKey("customers.id"))
    product_id: Mapped[int] = mapped_column(ForeignKey("products.id"))
    total_cents: Mapped[int]


class PointsEntry(db.Model):
    __tablename__ = "points_entries"
    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[int] = mapped_column(ForeignKey("orders.id"))
    points: Mapped[int]
