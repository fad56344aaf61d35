"""A queue under the worst of circumstances, on a real store: ``make demo-queue``."""
