"""One inference path, many protocols in front, proven versions behind; and the publisher that feeds it."""
