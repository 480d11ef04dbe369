package manual

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// Program is what the pages are held against.
type Program struct {
	Root      func() *cobra.Command // a new one for each call: flags keep their values
	Variables []string              // of the environment
	Metric    func(name string) bool
	// Constant reports whether the code has a word in capitals with underscores: a reason,
	// a code, a value of an enumeration.
	Constant func(name string) bool
	// Others are flags (with --) and variables of other programs.
	Others []string
}

// Finding is something that a page names and that does not exist.
type Finding struct {
	Page string
	Line int
	What string
}

func (f Finding) String() string { return fmt.Sprintf("%s:%d: %s", f.Page, f.Line, f.What) }

var (
	fence    = regexp.MustCompile("^ *(?:[-*>] *)?(```+|~~~+) *([a-z]*)")
	codeSpan = regexp.MustCompile("``([^`]+)``|`([^`]+)`")
	variable = regexp.MustCompile(`\bKEYSTEAD_[A-Z0-9_]*[A-Z0-9]\b`)
	metric   = regexp.MustCompile(`\bkeystead_[a-z0-9_]*[a-z0-9]\b(?:\*|_\*)?`)
	constant = regexp.MustCompile(`(?:^|[^A-Za-z0-9_$-])([A-Z]+(?:_[A-Z0-9]+)+)\b`)
	flag     = regexp.MustCompile(`^--[a-z][a-z0-9-]*`)
	left     = []string{"…", "...", "[ARG]..."}
)

// Check returns what a page names that does not exist.
func (p Program) Check(page, text string) []Finding {
	var found []Finding
	lines := strings.Split(text, "\n")
	for i := 0; i < len(lines); i++ {
		add := func(what string) { found = append(found, Finding{Page: page, Line: i + 1, What: what}) }
		if m := fence.FindStringSubmatch(lines[i]); m != nil {
			end := i + 1
			for end < len(lines) && !strings.HasPrefix(strings.TrimSpace(lines[end]), m[1]) {
				end++
			}
			block := strings.Join(lines[i+1:min(end, len(lines))], "\n")
			if m[2] == "sh" {
				p.commands(block, true, add)
			}
			p.names(block, add)
			i = end
			continue
		}
		for _, m := range codeSpan.FindAllStringSubmatch(lines[i], -1) {
			span := m[1] + m[2]
			p.commands(span, false, add)
			if name := flag.FindString(span); name != "" && !p.isFlag(name) {
				add(name + " is a flag of no command")
			}
		}
		p.names(lines[i], add)
	}
	return found
}

// names checks variables, metrics and constants.
func (p Program) names(text string, add func(string)) {
	for _, name := range variable.FindAllString(text, -1) {
		if !slices.Contains(p.Variables, name) && !slices.Contains(p.Others, name) {
			add(name + " is the variable of no setting")
		}
	}
	for _, name := range metric.FindAllString(text, -1) {
		if !strings.HasSuffix(name, "*") && !slices.Contains(p.Others, name) && !p.Metric(name) {
			add("there is no metric " + name)
		}
	}
	for _, m := range constant.FindAllStringSubmatch(text, -1) {
		name := m[1]
		if !strings.HasPrefix(name, "KEYSTEAD_") && !slices.Contains(p.Others, name) && !p.Constant(name) {
			add("there is no " + name)
		}
	}
}

// commands checks the calls of keystead in a piece of shell; whole means that there are
// no placeholders in it.
func (p Program) commands(shell string, whole bool, add func(string)) {
	for _, args := range commands(shell) {
		if why := p.refuses(args, whole); why != "" {
			add("keystead " + strings.Join(args, " ") + ": " + why)
		}
	}
}

// refuses says why the program does not take the arguments, or "".
func (p Program) refuses(args []string, whole bool) string {
	given := len(args)
	args = slices.DeleteFunc(slices.Clone(args), func(a string) bool { return slices.Contains(left, a) })
	short := len(args) < given // by what the page leaves out
	if len(args) > 0 && strings.ToUpper(args[0]) == args[0] && !strings.HasPrefix(args[0], "-") {
		return "" // keystead COMMAND
	}
	root := p.Root()
	root.InitDefaultHelpCmd()
	cmd, rest, err := root.Find(args)
	if err != nil {
		return err.Error()
	}
	cmd.InitDefaultHelpFlag()
	cmd.InitDefaultVersionFlag()
	if whole {
		if err := cmd.ParseFlags(rest); err != nil {
			return err.Error()
		}
		if help, _ := cmd.Flags().GetBool("help"); help || short {
			return ""
		}
		if err := cmd.ValidateArgs(cmd.Flags().Args()); err != nil {
			return err.Error()
		}
		return ""
	}
	if cmd.HasSubCommands() && len(rest) > 0 && !strings.HasPrefix(rest[0], "-") {
		if err := cmd.ValidateArgs(rest[:1]); err != nil && strings.Contains(err.Error(), "unknown command") {
			return err.Error()
		}
	}
	for _, a := range rest {
		if a == "--" {
			break
		}
		if name := flag.FindString(a); name != "" && cmd.Flag(name[2:]) == nil {
			return "there is no flag " + name
		}
	}
	return ""
}

// isFlag reports whether a command has a flag of that name, given with its --.
func (p Program) isFlag(name string) bool {
	return slices.Contains(p.Others, name) || anywhere(p.Root(), name[2:])
}

func anywhere(cmd *cobra.Command, flag string) bool {
	cmd.InitDefaultHelpFlag()
	cmd.InitDefaultVersionFlag()
	return cmd.Flag(flag) != nil || slices.ContainsFunc(cmd.Commands(), func(c *cobra.Command) bool { return anywhere(c, flag) })
}

// Rows returns the names in code that stand in the first cell of the rows of tables.
func Rows(text string) []string {
	var names []string
	for _, line := range strings.Split(text, "\n") {
		cells := strings.Split(strings.TrimSpace(line), "|")
		if len(cells) < 3 || cells[0] != "" {
			continue
		}
		for _, m := range codeSpan.FindAllStringSubmatch(cells[1], -1) {
			names = append(names, m[1]+m[2])
		}
		names = append(names, strings.TrimSpace(cells[1]))
	}
	return names
}
