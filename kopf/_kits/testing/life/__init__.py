"""What happens by itself: controllers, the garbage collector, pods and jobs that live a little."""
