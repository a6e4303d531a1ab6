.PHONY: setup
setup:
	@true
