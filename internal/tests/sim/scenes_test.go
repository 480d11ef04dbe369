package sim

import (
	"slices"
	"testing"
	"time"
)

func TestOwnerPauses(t *testing.T) {
	t.Parallel()
	play(t, setting{nodes: 3, clients: 3}, func(s *scene) {
		i := s.follower()
		s.Pause(i)
		s.sleep(s.between(ttl/2, 3*ttl))
		s.Resume(i)
		s.sleep(time.Second)
		s.restore()
	})
}

func TestLeaderPauses(t *testing.T) {
	t.Parallel()
	play(t, setting{nodes: 3, clients: 3}, func(s *scene) {
		i := s.leader()
		s.Pause(i)
		s.sleep(s.between(ttl/4, 4*ttl))
		s.Resume(i)
		s.sleep(time.Second)
		s.restore()
	})
}

// Everybody stops at once, as when the machine below is suspended.
func TestAllPause(t *testing.T) {
	t.Parallel()
	play(t, setting{nodes: 3, clients: 2}, func(s *scene) {
		for i := range s.hosts {
			s.Pause(i)
		}
		s.sleep(s.between(ttl/2, 5*ttl))
		for _, i := range s.rnd.Perm(3) {
			s.Resume(i)
			s.sleep(s.between(1, 500*time.Millisecond))
		}
		s.restore()
	})
}

func TestPartition(t *testing.T) {
	t.Parallel()
	for _, who := range []string{"owner", "leader"} {
		for _, how := range []string{"both ways", "deaf", "mute"} {
			t.Run(who+" "+how, func(t *testing.T) {
				var took times
				play(t, setting{nodes: 3, clients: 3}, func(s *scene) {
					i := s.follower()
					if who == "leader" {
						i = s.leader()
					}
					switch how {
					case "deaf":
						s.Deafen(i, true)
					case "mute":
						s.Mute(i, true)
					default:
						s.Partition([]int{i})
					}
					d := s.until(stableTime, "the others serve all", func() bool { return s.servedWithout(i) })
					if took.add(d); d > failoverTime {
						t.Errorf("%v, more than %v", d, failoverTime)
					}
					s.sleep(s.between(0, 2*ttl))
					s.restore()
				})
				took.report(t, "cut off until all keys are served")
			})
		}
	}
}

// Two of five on one side, the leader among them or not.
func TestMinority(t *testing.T) {
	t.Parallel()
	play(t, setting{nodes: 5, clients: 3}, func(s *scene) {
		p := s.rnd.Perm(5)
		s.Partition(p[:2])
		s.until(stableTime, "the others serve all", func() bool { return s.servedWithout(p[:2]...) })
		s.sleep(s.between(0, 2*ttl))
		s.restore()
	})
}

// vote reports whether so many nodes vote, in the eyes of all: not of the leader
// alone, which goes by changes that are not committed yet.
func (s *scene) vote(n int) func() bool {
	return func() bool {
		for _, p := range s.Live() {
			if voters, _ := p.Group.Servers(); len(voters) != n {
				return false
			}
		}
		return true
	}
}

func TestFlapping(t *testing.T) {
	t.Parallel()
	play(t, setting{nodes: 3, clients: 3}, func(s *scene) {
		for range 40 {
			i, j := s.rnd.IntN(3), s.rnd.IntN(3)
			if i != j {
				s.Cut(i, j, s.rnd.IntN(2) == 0)
			}
			s.sleep(s.between(10*time.Millisecond, 800*time.Millisecond))
		}
		s.restore()
	})
}

func TestLossyLinks(t *testing.T) {
	t.Parallel()
	play(t, setting{nodes: 3, clients: 3}, func(s *scene) {
		s.Net.SetFaults("", "", Faults{Min: time.Millisecond, Max: 60 * time.Millisecond, Loss: 0.03, Reset: 0.002})
		s.Gossip.SetLoss(0.2)
		s.Gossip.SetDuplicates(0.1)
		s.sleep(20 * time.Second)
		s.restore()
	})
}

func TestRestart(t *testing.T) {
	t.Parallel()
	for _, disk := range []string{"kept", "wiped"} {
		t.Run("disk "+disk, func(t *testing.T) {
			play(t, setting{nodes: 3, clients: 3}, func(s *scene) {
				p, _ := s.Process(0)
				uid := p.Group.Table().UID
				for _, i := range s.rnd.Perm(3) { // the one that is told to make the cluster, too
					if s.rnd.IntN(2) == 0 {
						s.Kill(i)
					} else {
						s.Crash(i)
					}
					if disk == "wiped" {
						s.Wipe(i)
					}
					s.sleep(s.between(0, 2*ttl))
					if err := s.Start(i); err != nil {
						t.Fatal(err)
					}
					s.restore()
					s.until(stableTime, "three vote", s.vote(3))
				}
				for _, p := range s.Live() {
					if got := p.Group.Table().UID; got != uid {
						t.Errorf("%s is of the cluster %s, not %s", p.Name, got, uid)
					}
				}
			})
		})
	}
}

// A majority loses its disks at once: nobody may act on what it knew, and nobody
// makes a second cluster.
func TestMajorityWiped(t *testing.T) {
	t.Parallel()
	play(t, setting{nodes: 3, clients: 2}, func(s *scene) {
		for _, i := range s.rnd.Perm(3)[:2] {
			s.Crash(i)
			s.Wipe(i)
		}
		if err := s.StartAll(); err != nil {
			t.Fatal(err)
		}
		s.sleep(10 * time.Second)
		if s.v.Verify(s.Cluster); s.v.Served(time.Now()) != 0 {
			t.Errorf("somebody serves without a quorum")
		}
	})
}

func TestAllRestart(t *testing.T) {
	t.Parallel()
	play(t, setting{nodes: 3, clients: 3}, func(s *scene) {
		for i := range s.hosts {
			s.Crash(i)
		}
		s.sleep(s.between(0, 3*time.Second))
		for _, i := range s.rnd.Perm(3) {
			if err := s.Start(i); err != nil {
				t.Fatal(err)
			}
			s.sleep(s.between(0, time.Second))
		}
		s.restore()
	})
}

// Every disk is lost and the cluster is made anew: tokens go on above.
func TestAllWiped(t *testing.T) {
	t.Parallel()
	play(t, setting{nodes: 3, clients: 3}, func(s *scene) {
		s.sleep(2 * time.Second)
		for i := range s.hosts {
			s.Crash(i)
			s.Wipe(i)
		}
		s.judge.AllLost() // no table says so: nobody is left who knows
		s.restore()
		s.sleep(2 * time.Second)
	})
}

func TestWallClockJumps(t *testing.T) {
	t.Parallel()
	play(t, setting{nodes: 3, clients: 3}, func(s *scene) {
		for range 12 {
			by := s.between(-3*ttl, 3*ttl)
			if s.rnd.IntN(3) == 0 {
				by *= 10_000 // half a day
			}
			s.JumpWall(s.rnd.IntN(3), by)
			s.sleep(s.between(10*time.Millisecond, 2*time.Second))
		}
		s.restore()
	})
}

// chaosTime is how long faults go on.
const chaosTime = time.Minute / slower

// Random faults for a while, then all is well again.
func TestChaos(t *testing.T) {
	t.Parallel()
	for _, nodes := range []int{3, 5} {
		var took times
		play(t, setting{nodes: nodes, clients: 4, drift: slewDrift}, func(s *scene) {
			for over := time.Now().Add(chaosTime); time.Now().Before(over); {
				s.chaos()
				s.sleep(s.between(time.Millisecond, 2*time.Second))
			}
			took.add(s.restore())
		})
		took.report(t, "from healing until all is well")
	}
}

// chaos does one thing to the cluster.
func (s *scene) chaos() {
	i := s.rnd.IntN(len(s.hosts))
	if l := s.Leader(); l >= 0 && s.rnd.IntN(3) == 0 {
		i = l
	}
	j := (i + 1 + s.rnd.IntN(len(s.hosts)-1)) % len(s.hosts)
	switch s.rnd.IntN(16) {
	case 0:
		s.Kill(i)
	case 1:
		s.Crash(i)
	case 2, 3, 4:
		for k := range s.hosts {
			if !s.Running(k) {
				if err := s.Start(k); err != nil {
					s.t.Fatal(err)
				}
				break
			}
		}
	case 5:
		s.Pause(i)
	case 6, 7:
		for k := range s.hosts {
			s.Resume(k)
		}
	case 8:
		s.Partition(s.rnd.Perm(len(s.hosts))[:1+s.rnd.IntN(len(s.hosts)-1)])
	case 9:
		s.Cut(i, j, true)
	case 10:
		s.Heal()
	case 11:
		s.Net.Reset(s.hosts[i].addr, s.hosts[j].addr)
	case 12:
		s.JumpWall(i, s.between(-ttl, ttl))
	case 13:
		f := Faults{Min: time.Millisecond, Max: s.between(2*time.Millisecond, 300*time.Millisecond), Loss: 0.05 * s.rnd.Float64()}
		s.Net.SetFaults(s.hosts[i].addr, s.hosts[j].addr, f)
	case 14:
		s.Net.SetFaults(s.hosts[i].addr, s.hosts[j].addr, Faults{Stuck: 0.02 * s.rnd.Float64()})
	case 15:
		s.SlewClock(i, slewed*(2*s.rnd.Float64()-1))
	}
}

// Orderly stops, also of everybody in turn while links are bad.
func TestRollingRestart(t *testing.T) {
	t.Parallel()
	play(t, setting{nodes: 3, clients: 3}, func(s *scene) {
		order := s.rnd.Perm(3)
		if s.rnd.IntN(2) == 0 {
			slices.Reverse(order)
		}
		for _, i := range order {
			s.Stop(i)
			s.sleep(s.between(0, time.Second))
			if err := s.Start(i); err != nil {
				t.Fatal(err)
			}
			s.until(stableTime, "all is well again", s.stable)
		}
		s.lostNothing()
	})
}
