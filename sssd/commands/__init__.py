"""The commands, one file a subject: options in, a public function called, its result shown."""
