"""What a site of a federation is, whatever carries the bytes: its folder, keys, letters, members and supervisor."""
