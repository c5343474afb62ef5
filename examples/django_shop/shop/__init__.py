"""A shop whose mails are sent by tasks, from workers that may be killed.

In ``examples/django_shop``:

    python manage.py runserver
    python manage.py qindex_worker --concurrency 4
    curl --data address=ann@example.com http://127.0.0.1:8000/

On Django 6 the tasks are Django's own; before, those of the package ``django-tasks``.
"""
