"""The what-if console: a fitted federation in a browser, seen from a unit or from the server.

``app`` makes the application, ``guarding`` stands before it, ``serving`` runs both for ``counterflow console``.
Nothing is imported here: FastAPI and uvicorn come with ``pip install 'counterflow[console]'``.
"""
