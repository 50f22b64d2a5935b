"""What is decided when a program is made of a pack: by kind of kernel, from what a device can do."""
