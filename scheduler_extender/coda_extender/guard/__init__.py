"""What a foreign pod may not take: the answer of the filter. Read `guard` first."""
