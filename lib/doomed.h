/* doomed.h: what must not outlive the process: temporary files, folders of them. A signal that ends the process removes
 * them first; what ends in the ordinary way removes its own and strikes it off.
 */
#ifndef Q4X_DOOMED_H
#define Q4X_DOOMED_H

/* One path on the list. Lives in the caller's memory, zeroed before its first use. */
typedef struct q4x_doomed {
    const char *path; /* borrowed until q4x_pardon */
    struct q4x_doomed *next;
} q4x_doomed;

/* Put a file, or a folder of files, on the list. Cannot fail. */
void q4x_doom(q4x_doomed *d, const char *path);
/* Strike it off; nothing is removed. Fine when it is not on the list. */
void q4x_pardon(q4x_doomed *d);

/* From now on SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGPIPE and SIGXCPU remove what is on the list and then end the process
 * as they would have. A signal that the process was started to ignore, or that is handled already, stays so. */
void q4x_doom_on_signals(void);

#endif
