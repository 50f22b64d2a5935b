"""Sound as input of networks: files to samples, samples to a log-mel spectrogram."""
