"""Programs that are built once and kept in the user's cache: the control plane, Helm, the compiled core."""
