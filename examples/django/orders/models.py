from django.db import models


class Customer(models.Model):
    email = models.EmailField(unique=True)
    points = models.IntegerField(default=0)


class Product(models.Model):
    name = models.CharField(max_length=100)
    stock = models.PositiveIntegerField()


class Order(models.Model):
    customer = models.ForeignKey(Customer, on_delete=models.PROTECT)
    product = models.ForeignKey(Product, on_delete=models.PROTECT)
    total_cents = models.PositiveIntegerField()
    paid_at = models.DateTimeField(null=True)
    created_at = models.DateTimeField(auto_now_add=True)


class PointsEntry(models.Model):
    order = models.ForeignKey(Order, on_delete=models.CASCADE)
    points = models.IntegerField()
