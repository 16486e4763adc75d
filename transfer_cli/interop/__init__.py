"""Published models in, our models out: folders as Hugging Face's libraries write them."""
