package history

import "testing"

var (
	getReg = RegisterInput{Op: RegisterGet}
	delReg = RegisterInput{Op: RegisterDelete}
)

func putReg(v string) RegisterInput { return RegisterInput{Op: RegisterPut, Value: v} }
func casReg(v string, version uint64) RegisterInput {
	return RegisterInput{Op: RegisterCompareAndSet, Value: v, Version: version}
}
func (in RegisterInput) fenced(token uint64) RegisterInput {
	in.Fence = token
	return in
}
func (in RegisterInput) held(token uint64) RegisterInput {
	in.Hold = token
	return in
}
func (in RegisterInput) at(version uint64) RegisterInput {
	in.Version = version
	return in
}
func set(version uint64) RegisterOutput { return RegisterOutput{Applied: true, Version: version} }
func reg(v string, version uint64) RegisterOutput {
	return RegisterOutput{Told: true, Exists: version != 0, Value: v, Version: version, At: version}
}
func (o RegisterOutput) behind(fence uint64) RegisterOutput {
	o.Fence = fence
	return o
}
func (o RegisterOutput) why(why RegisterRefusal) RegisterOutput {
	o.Refusal = why
	return o
}

func TestRegister(t *testing.T) {
	histories{
		"nothing":           {true, nil},
		"never written":     {true, []Call{done(0, 1, getReg, reg("", 0)), done(2, 3, delReg, RegisterOutput{})}},
		"written and read":  {true, []Call{done(0, 1, putReg("a"), set(5)), done(2, 3, getReg, reg("a", 5))}},
		"a stale read":      {false, []Call{done(0, 1, putReg("a"), set(5)), done(2, 3, getReg, reg("", 0))}},
		"another value":     {false, []Call{done(0, 1, putReg("a"), set(5)), done(2, 3, getReg, reg("b", 5))}},
		"another version":   {false, []Call{done(0, 1, putReg("a"), set(5)), done(2, 3, getReg, reg("a", 6))}},
		"a version falls":   {false, []Call{done(0, 1, putReg("a"), set(5)), done(2, 3, putReg("b"), set(4))}},
		"a version twice":   {false, []Call{done(0, 1, putReg("a"), set(5)), done(2, 3, putReg("b"), set(5))}},
		"an empty value":    {true, []Call{done(0, 1, putReg(""), set(5)), done(2, 3, getReg, reg("", 5))}},
		"a free name":       {true, []Call{done(0, 1, casReg("a", 0), set(5)), done(2, 3, casReg("b", 0), reg("a", 5).why(OtherVersion))}},
		"a name, twice":     {false, []Call{done(0, 9, casReg("a", 0), set(5)), done(0, 9, casReg("b", 0), set(6))}},
		"in turn":           {true, []Call{done(0, 1, casReg("a", 0), set(5)), done(2, 3, casReg("b", 5), set(6)), done(4, 5, casReg("c", 5), reg("b", 6).why(OtherVersion))}},
		"refused in vain":   {false, []Call{done(0, 1, putReg("a"), set(5)), done(2, 3, casReg("b", 5), reg("a", 5).why(OtherVersion))}},
		"refused, and done": {false, []Call{done(0, 1, putReg("a"), set(5)), done(2, 3, casReg("b", 4), reg("a", 5).why(OtherVersion)), done(4, 5, getReg, reg("b", 6))}},

		"deleted":               {true, []Call{done(0, 1, putReg("a"), set(5)), done(2, 3, delReg, set(6)), done(4, 5, getReg, reg("", 0)), done(6, 7, casReg("b", 0), set(7))}},
		"deleted, still there":  {false, []Call{done(0, 1, putReg("a"), set(5)), done(2, 3, delReg, set(6)), done(4, 5, getReg, reg("a", 5))}},
		"a version comes again": {false, []Call{done(0, 1, putReg("a"), set(5)), done(2, 3, delReg, set(6)), done(4, 5, putReg("b"), set(5))}},
		"deleted what is not":   {false, []Call{done(0, 1, delReg, set(6))}},
		"nothing deleted":       {false, []Call{done(0, 1, putReg("a"), set(5)), done(2, 3, delReg, RegisterOutput{})}},
		"of a version":          {true, []Call{done(0, 1, putReg("a"), set(5)), done(2, 3, delReg.at(4), reg("a", 5).why(OtherVersion)), done(4, 5, delReg.at(5), set(6))}},

		"fenced":                {true, []Call{done(0, 1, putReg("a").fenced(7), set(5)), done(2, 3, putReg("b").fenced(6), reg("a", 5).behind(7).why(OldFence))}},
		"an old token is taken": {false, []Call{done(0, 1, putReg("a").fenced(7), set(5)), done(2, 3, putReg("b").fenced(6), set(6))}},
		"a new one is not":      {false, []Call{done(0, 1, putReg("a").fenced(7), set(5)), done(2, 3, putReg("b").fenced(7), reg("a", 5).behind(7).why(OldFence))}},
		"a delete keeps it":     {true, []Call{done(0, 1, putReg("a").fenced(7), set(5)), done(2, 3, delReg, set(6)), done(4, 5, putReg("b").fenced(6), reg("", 0).behind(7).why(OldFence))}},
		"a delete forgets it":   {false, []Call{done(0, 1, putReg("a").fenced(7), set(5)), done(2, 3, delReg, set(6)), done(4, 5, putReg("b").fenced(6), set(7))}},

		"under a lock":           {true, []Call{done(0, 1, putReg("a").held(7), set(5)), done(2, 3, putReg("b").held(7), reg("a", 5).why(HoldOver))}},
		"a late holder is let":   {false, []Call{done(0, 1, putReg("a").held(8), set(5)), done(2, 3, putReg("b").held(7), set(6))}},
		"refused without a lock": {false, []Call{done(0, 1, putReg("a"), reg("", 0).why(HoldOver))}},

		"lost, and done":      {true, []Call{lost(0, putReg("a")), done(5, 6, getReg, reg("a", 3))}},
		"lost, and not done":  {true, []Call{lost(0, putReg("a")), done(5, 6, getReg, reg("", 0))}},
		"lost, and done late": {true, []Call{lost(0, putReg("a")), done(5, 6, putReg("b"), set(4)), done(7, 8, getReg, reg("a", 6))}},
		"lost, done twice":    {false, []Call{lost(0, putReg("a")), done(5, 6, getReg, reg("a", 3)), done(7, 8, putReg("b"), set(4)), done(9, 10, getReg, reg("a", 6))}},
		"lost set-if":         {true, []Call{done(0, 1, putReg("a"), set(5)), lost(2, casReg("b", 5)), done(5, 6, casReg("c", 5), reg("b", 6).why(OtherVersion))}},
		"lost set-if that cannot": {false, []Call{
			done(0, 1, putReg("a"), set(5)), lost(2, casReg("b", 4)), done(5, 6, getReg, reg("b", 6))}},
		"lost delete": {true, []Call{done(0, 1, putReg("a"), set(5)), lost(2, delReg), done(5, 6, casReg("b", 0), set(9))}},
		"a retry deletes what came since": {false, []Call{
			done(0, 1, putReg("a"), set(3)), as("r", done(2, 3, delReg, set(5))), done(4, 5, putReg("b"), set(6)),
			as("r", done(6, 7, delReg, RegisterOutput{Applied: true, Version: 5, Told: true, Exists: true, Value: "b", At: 6, Replay: Replay{true, 3}})), done(8, 9, getReg, reg("", 0))}},
	}.check(t, Register(0))
}

// A register whose state was declared lost may be what it was, or nothing; what is told of it
// then counts.
func TestRegisterUnsure(t *testing.T) {
	m, ok := Register(0).Unsure()
	if !ok {
		t.Fatal("it has no unknown state")
	}
	histories{
		"there":          {true, []Call{done(0, 1, getReg, reg("a", 5)), done(2, 3, casReg("b", 5), set(6))}},
		"gone":           {true, []Call{done(0, 1, getReg, reg("", 0)), done(2, 3, casReg("b", 0), set(6))}},
		"there and gone": {false, []Call{done(0, 1, getReg, reg("a", 5)), done(2, 3, getReg, reg("", 0))}},
		"set at once":    {true, []Call{done(0, 1, putReg("b"), set(6)), done(2, 3, getReg, reg("b", 6))}},
		"lost at once":   {true, []Call{lost(0, putReg("b")), done(2, 3, getReg, reg("a", 5))}},
	}.check(t, m)
}
