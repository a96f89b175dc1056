/* cmd_pair.h: what `bisect` and `report` share: two dumps and their controls, from words to a judged case. */
#ifndef CMD_PAIR_H
#define CMD_PAIR_H

#include "bin/cmd.h"
#include "bisect/case.h"
#include "bisect/session.h"

typedef struct {
    const char *name[2]; /* operands, as given */
    int operands;
    const char *floor_a, *floor_b, *null_a, *null_b, *session;
    int allow_confounded, session_null;
} cmd_pair;

extern const struct argp cmd_pair_argp; /* a child for the command's argp; its input is a cmd_pair */

typedef struct {
    bis_case *c;
    q4x_dump *dump[6];
    bis_names names;
} cmd_case;

/* Read the dumps and judge. Returns an exit code of its own on failure (said on stderr), 0 when k->c is there. */
int cmd_case_open(const cmd_pair *p, const bis_session *s, const char *command, cmd_ctx *c, cmd_case *k);
void cmd_case_close(cmd_case *k);

/* "q4x bisect A B": the command line in one string; malloc'd. */
char *cmd_line(const cmd_ctx *c);

/* The journal entry of a judged pair, and back. NULL: no memory. The words of the pair are borrowed from the entry. */
json_t *cmd_pair_entry(const cmd_pair *p, const cmd_case *k);
int cmd_pair_from_entry(const json_t *entry, cmd_pair *ret, q4x_err *err);
/* The dumps are still those that the entry was made from. */
int cmd_case_unchanged(const cmd_case *k, const json_t *entry, q4x_err *err);

#endif
