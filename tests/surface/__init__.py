"""The listing of what users, dashboards and nodes see, and the test that holds it."""
