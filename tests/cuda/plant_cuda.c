/* plant_cuda FAULT: a program with that fault on the device, which a checker must find (sanitize.sh). */
#include <stdio.h>

#include "tests/cuda/plant.h"

int main(int argc, char **argv) {
    if (argc == 2 && !ct_plant(argv[1])) return 0;
    fprintf(stderr, "plant_cuda memcheck|racecheck|initcheck: nothing was planted\n");
    return 2;
}
