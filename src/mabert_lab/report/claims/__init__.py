"""What the paper claims, each claim with a rule, judged by what was measured here."""
