"""From what a user asked to what is accepted: `acceptance` asks the API server, `asked_again` says when once more."""
