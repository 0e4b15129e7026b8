/* What the system lets this process use, read below `root`: "" outside of tests. */
#ifndef TILEWRIGHT_CORES_H
#define TILEWRIGHT_CORES_H

#include <stdint.h>

/* The number of cores, on which threads that compute all the time do not slow each other down. */
int32_t tw_usable_cores(const char *root);

#endif
