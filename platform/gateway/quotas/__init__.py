"""What a tenant may use, kept in the state store and leased to this gateway. No database, no queueing."""
