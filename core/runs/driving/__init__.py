"""An open run kept going: slots filled, servers that come and go, pauses, harvest, its end."""
