"""What primitives ask of a program before they change it: where statements stand, what they touch,
what is known of that for certain, and how a refusal is told. One file per question."""
