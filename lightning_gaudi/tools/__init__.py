"""What looks at a program from outside: the plan, the audit, the doctor, and the command line."""
