from django.db import IntegrityError, connection, transaction
from django.db.models import F
from django.http import HttpRequest, JsonResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.http import require_POST

import yamlsched
from orders.models import Customer, Order, Product


@require_POST
def place_order(request: HttpRequest) -> JsonResponse:
    customer = get_object_or_404(Customer, email=request.POST["email"])
    product = get_object_or_404(Product, pk=request.POST["product"])
    try:
        with transaction.atomic():
            order = Order.objects.create(customer=customer, product=product, total_cents=4900)
            yamlsched.enqueue(
                connection, "send_receipt", {"order_id": order.pk}, key=f"send_receipt:{order.pk}"
            )
            yamlsched.enqueue(
                connection, "add_points", {"order_id": order.pk}, key=f"add_points:{order.pk}"
            )
            Product.objects.filter(pk=product.pk).update(stock=F("stock") - 1)
    except IntegrityError:
        # the stock would be negative: nothing is committed, neither the order nor the runs
        return JsonResponse({"error": "sold out"}, status=409)
    return JsonResponse({"order": order.pk}, status=201)
