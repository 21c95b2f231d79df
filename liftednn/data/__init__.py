"""Where rows come from and how they are checked: sources, validation, identity, tables."""
