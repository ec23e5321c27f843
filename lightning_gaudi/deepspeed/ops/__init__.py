"""DeepSpeed's operations in C++, which the offloaded optimizer needs."""
