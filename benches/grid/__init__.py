"""What the benches of grid identity share: people, servers, load, and the machine under them."""
