"""Pictures with what is known of them: folders, CIFAR-10, VOC annotations."""
