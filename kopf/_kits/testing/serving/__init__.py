"""Requests and answers: the HTTP server, what is read from a request, and in which form it is answered."""
