"""Plans of other systems for the same graph, priced in the same ledger."""
