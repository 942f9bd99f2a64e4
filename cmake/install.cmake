# cmake --install, find_package(weft) and pkg-config.
