/* h_door.h: a command called as main calls it, for tests that do things to its device meanwhile. */
#ifndef H_DOOR_H
#define H_DOOR_H

#include "bin/cmd.h"

enum { HD_SAID = 4000 };

/* args: the command's name first, NULL last. Its exit code, and what it said on stdout and stderr, cut. */
int hd_command(cmd_fn fn, const char *const *args, char out[HD_SAID], char said[HD_SAID]);

#endif
