/* Does the same as rights_unseen.c, by an instruction whose system call number cannot be known beforehand. */
static volatile long number;
#define NUMBER number
#define main unused_main
#include "rights_unseen.c"
#undef main

int main(int argc, char **argv)
{
	number = SYS_setresuid;
	return unused_main(argc, argv);
}
