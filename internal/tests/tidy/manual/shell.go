package manual

import (
	"slices"
	"strings"
)

// commands returns the arguments of each call of keystead in a piece of shell.
func commands(shell string) [][]string {
	var found [][]string
	for _, words := range simple(shell) {
		if args, ok := ofKeystead(words); ok {
			found = append(found, args)
		}
	}
	return found
}

// ofKeystead returns the arguments that a simple command gives to keystead, if it runs it.
func ofKeystead(words []string) (args []string, ok bool) {
	for len(words) > 0 && (strings.Contains(words[0], "=") || slices.Contains([]string{"sudo", "time", "exec", "$"}, words[0])) {
		words = words[1:]
	}
	switch {
	case len(words) == 0:
		return nil, false
	case words[0] == "keystead" || words[0] == "./keystead" || words[0] == "/usr/bin/keystead":
		return words[1:], true
	case len(words) > 2 && words[0] == "go" && words[1] == "run" && words[2] == "./cmd/keystead":
		return words[3:], true
	case slices.Contains(words, "exec"): // docker exec n1 /usr/bin/keystead …
		if i := slices.Index(words, "/usr/bin/keystead"); i > 0 {
			return words[i+1:], true
		}
	}
	return nil, false
}

// simple splits a piece of shell into its simple commands, without redirections and
// comments. What is quoted is one word.
func simple(shell string) [][]string {
	var all [][]string
	s := scanner{}
	end := func() {
		s.endWord()
		if len(s.words) > 0 {
			all = append(all, s.words)
		}
		s.words, s.redirected = nil, false
	}
	shell = strings.ReplaceAll(shell, "\\\n", " ")
	for i := 0; i < len(shell); i++ {
		c := shell[i]
		switch {
		case s.quote != 0:
			if c == s.quote {
				s.quote = 0
			} else {
				s.word = append(s.word, c)
			}
		case c == '\'' || c == '"':
			s.quote, s.inWord = c, true
		case c == '#' && !s.inWord:
			for i+1 < len(shell) && shell[i+1] != '\n' {
				i++
			}
		case strings.IndexByte("\n;|&()", c) >= 0:
			end()
		case c == '>' || c == '<':
			s.endWord()
			s.redirected = true
		case c == ' ' || c == '\t':
			s.endWord()
		default:
			s.word, s.inWord = append(s.word, c), true
		}
	}
	end()
	return all
}

// scanner is where simple is in a command.
type scanner struct {
	words      []string
	word       []byte
	inWord     bool
	quote      byte // that opened, or 0
	redirected bool // the next word is a file
}

func (s *scanner) endWord() {
	if s.inWord && !s.redirected {
		s.words = append(s.words, string(s.word))
	}
	if s.inWord {
		s.redirected = false
	}
	s.word, s.inWord = nil, false
}
