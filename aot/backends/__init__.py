"""Code generators: kernel IR in, machine code or shader words out; neither knows the other."""
