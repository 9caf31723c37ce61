"""What the API server sends, of any size and form: JSON of any depth, and logs that never end."""
