import os

import psycopg
from flask import Flask

from shop.models import db
from shop.views import orders

DSN = os.environ["YAMLSCHED_DSN"]  # the application and yamlsched use one database


def create_app() -> Flask:
    app = Flask(__name__)
    app.config["SQLALCHEMY_DATABASE_URI"] = "postgresql+psycopg://"
    app.config["SQLALCHEMY_ENGINE_OPTIONS"] = {
        "creator": lambda: psycopg.connect(DSN),
        "pool_pre_ping": True,
    }
    db.init_app(app)
    app.register_blueprint(orders)
    return app
