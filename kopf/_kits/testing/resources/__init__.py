"""What is served: kinds of objects, CRDs, their versions and subresources, webhooks that are asked about them."""
