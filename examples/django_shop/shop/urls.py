"""The page of the shop: POST an address to sign up, GET ``?id=`` to ask for the mail's state."""

from __future__ import annotations

from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt

from shop.tasks import send_mail


@csrf_exempt
def sign_up(request: HttpRequest) -> JsonResponse:
    """Sign up, or tell the state of a mail."""
    if request.method == "GET":
        result = send_mail.get_result(request.GET["id"])
        return JsonResponse({"status": result.status, "attempts": result.attempts})
    with transaction.atomic():
        # The customer is saved here. If that is rolled back, no mail is sent.
        result = send_mail.enqueue(request.POST["address"])
    return JsonResponse({"id": result.id}, status=202)


urlpatterns = [path("", sign_up)]
