/* report.h: the sections of the Markdown report that show numbers (report_tables.c, report_nodes.c). */
#ifndef BISECT_REPORT_H
#define BISECT_REPORT_H

#include "bisect/case.h"
#include "bisect/fmt.h"

void bis_report_structure(const bis_case *c, FILE *o);
void bis_report_comparability(const bis_case *c, FILE *o);
void bis_report_tokens(const bis_case *c, FILE *o);
void bis_report_selections(const bis_case *c, FILE *o);
void bis_report_decisions(const bis_case *c, FILE *o);

void bis_report_first(const bis_case *c, FILE *o);
void bis_report_nodes(const bis_case *c, FILE *o);
void bis_report_depth(const bis_case *c, FILE *o);
void bis_report_gains(const bis_case *c, FILE *o);

#endif
