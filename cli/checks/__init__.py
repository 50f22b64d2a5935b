"""What `doctor` looks at: findings, of the machine, of where packs lie, of what a service needs."""
