"""A web shop on Django, in one file: the order and its shipping are stored in one transaction.

Run `ff worker django_shop.py:app` in this directory, with FLOWFABRIC_URL set, then `python django_shop.py` in another
terminal to place two orders, or `python django_shop.py runserver`. Needs `pip install django "psycopg[binary]"`.
"""

import os
import sys

import django
from django.conf import settings
from django.core.management import execute_from_command_line
from django.db import close_old_connections, connection, models, transaction
from django.http import HttpRequest, JsonResponse
from django.test import Client
from django.urls import path
from psycopg.conninfo import conninfo_to_dict

from flowfabric import App, SyncContext

server = conninfo_to_dict(os.environ["FLOWFABRIC_URL"])
settings.configure(
    ALLOWED_HOSTS=["*"],
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": server.get("dbname"),
            "USER": server.get("user"),
            "PASSWORD": server.get("password"),
            "HOST": server.get("host"),
            "PORT": server.get("port"),
        }
    },
    DEBUG=True,
    ROOT_URLCONF=__name__,
)
django.setup()

app = App()


class Order(models.Model):
    """What a customer ordered, and how it is sent."""

    id = models.BigAutoField(primary_key=True)
    customer = models.TextField()
    execution_id = models.TextField(default="")
    parcel = models.TextField(default="")

    class Meta:
        app_label = "shop"


@app.task(lane="shipping", retries=5)
def ship(ctx: SyncContext, order: int) -> str:
    close_old_connections()  # as in every thread that lives long
    label = ctx.step("label", lambda: f"parcel {order}")
    Order.objects.filter(id=order).update(parcel=label)
    return label


def place_order(request: HttpRequest) -> JsonResponse:
    """Store the order and submit its shipping, or neither."""
    customer = request.GET["customer"]
    with transaction.atomic():
        order = Order.objects.create(customer=customer)
        order.execution_id = str(ship.submit_in(connection, order.id).execution_id)
        order.save()
        if not customer.isalpha():
            transaction.set_rollback(True)
            return JsonResponse({"error": f"{customer!r} is not a customer"}, status=422)
    return JsonResponse({"order": order.id})


def look(request: HttpRequest, number: int) -> JsonResponse:
    order = Order.objects.get(id=number)
    shipping = app.sync().open().execution(order.execution_id)  # opens the app at its first use in this process
    return JsonResponse({"parcel": order.parcel, "shipping": shipping.explain().sentence})


urlpatterns = [path("orders", place_order), path("orders/<int:number>", look)]


def main() -> None:
    with connection.schema_editor() as tables:
        if "shop_order" not in connection.introspection.table_names():
            tables.create_model(Order)
    if len(sys.argv) > 1:
        execute_from_command_line(sys.argv)
        return
    client = Client()
    placed = client.get("/orders?customer=ada").json()["order"]
    refused = client.get("/orders?customer=---")
    print(refused.json()["error"])
    order = Order.objects.get(id=placed)
    print(app.sync().open().execution(order.execution_id).result("1m"))
    print(client.get(f"/orders/{placed}").json()["parcel"])
    print(f"{Order.objects.count()} order")


if __name__ == "__main__":
    main()
