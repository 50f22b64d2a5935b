"""What a repository's folders say: models, their versions, their config.pbtxt."""
